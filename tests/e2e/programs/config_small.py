out_dir = "out-small"
