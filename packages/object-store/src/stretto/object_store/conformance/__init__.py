"""A pytest suite that every back end must pass, with the servers and faults it needs.

Import `stretto.object_store.conformance.suite` from a test module and subclass its classes; see the
README. This package needs pytest; the rest of ``stretto.object_store`` does not.
"""
