"""What every page and plot shares: figures and the shell of a page."""
