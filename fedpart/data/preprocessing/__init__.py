"""Preprocessing: from raw rows and pixels to inputs of a network, made once from training examples."""

from fedpart.data.preprocessing.base import Behind as Behind
from fedpart.data.preprocessing.base import Preprocessing as Preprocessing
from fedpart.data.preprocessing.base import preprocessing_of as preprocessing_of
from fedpart.data.preprocessing.pictures import Pictures as Pictures
from fedpart.data.preprocessing.rows import Rows as Rows
