"""The content of the lines of text data, format by format; used by the check of uploads and by workers."""
