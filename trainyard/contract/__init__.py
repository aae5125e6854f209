"""The shared contract: specs, wire formats and file layout. A leaf package: it imports no other package of Trainyard."""
