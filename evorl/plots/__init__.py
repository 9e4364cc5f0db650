"""Charts of trainings: Vega-Lite specifications with their data, for pictures and for the report."""
