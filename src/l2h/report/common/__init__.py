"""What all reports share: number formats, tables, figures, and the frame of a page."""
