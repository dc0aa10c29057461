"""What every report shares: numbers in words, tables, figures, and the shell of a page."""
