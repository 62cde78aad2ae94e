"""Test doubles that ship: the real core and runtime over a fake log, with time under control."""
