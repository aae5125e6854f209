"""Reading curves: points thinned as they arrive, at several widths, and cut where a later execution took over."""
