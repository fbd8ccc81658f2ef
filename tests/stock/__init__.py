"""Networks that nobody changed for fedpart: by name, with data, and with their losses in plain torch."""

from stock.kinds import Stock
from stock.sequences import SEQUENCES
from stock.tables import TABLES
from stock.text import TEXT
from stock.vision import VISION

STOCK: dict[str, Stock] = {**VISION, **SEQUENCES, **TEXT, **TABLES}
