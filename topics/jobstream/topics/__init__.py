"""The catalogue of topics: who writes what, under which key, for whom, kept how long. It owns these facts alone."""
