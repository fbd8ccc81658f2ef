"""The ready-made ClientApp: clients of the experiment that the run config describes."""

from fedpart.flower.client import make_client_app
from simulations.flower.config import build_experiment, residuals_folder
from simulations.flower.statistics import tell

app = make_client_app(build_experiment, residuals_folder, tell=tell)
