"""Files: written whole or record by record, sealed, packaged; formulas and JSON text."""
