"""The training loop. It knows neither HTTP nor the scheduler."""
