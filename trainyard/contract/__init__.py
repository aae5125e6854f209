"""The shared contract: specs, wire formats and file layout. It imports no other package of Trainyard."""
