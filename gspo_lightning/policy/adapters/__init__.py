"""Adapters: low-rank weights beside frozen ones, their files, and which parts are frozen."""
