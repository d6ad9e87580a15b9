"""A page for browsers: models that answer offline, in static files."""
