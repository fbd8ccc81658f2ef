"""Card: the runs of tables that fit the minutes of a borrowed card."""
