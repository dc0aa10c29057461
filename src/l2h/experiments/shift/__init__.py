"""What a finished run does where the inputs are no longer like its calibration samples."""
