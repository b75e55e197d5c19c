"""Datasets behind URLs: files come into a folder beside the store, or go out of one.

fsspec speaks to the services; where they are and who we are comes from its own settings and from
the environment. Nothing here decides what an import takes: it fetches what the import asks for.
"""
