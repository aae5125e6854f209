"""The database: engine, types, models, migrations."""
