"""What is done about disks in the background: deletions finished, space measured, warnings before it runs out."""
