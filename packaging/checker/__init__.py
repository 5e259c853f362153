"""Checks packages by using them, for `scripts/check-packages`.

    builds: twice the same bytes ─► units: the sandbox's figures ─► clean: installed and run in a clean root, and as services
                         └► foreign: the image under an emulator └► clusters: manifests against schemas ─► pods: played here
"""
