"""The compiled parts, which are optional: without a compiler the installation leaves them out."""

from setuptools import Extension, setup

LIMITED = {"define_macros": [("Py_LIMITED_API", "0x030b0000")], "py_limited_api": True, "optional": True}

setup(
    ext_modules=[
        Extension(
            "discreet.core.generators._normals",
            ["src/discreet/core/generators/_normals.c"],
            depends=["src/discreet/core/generators/_normals_lanes.h"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            **LIMITED,
        ),
        Extension("discreet.engine.proof.calls._expected", ["src/discreet/engine/proof/calls/_expected.c"], **LIMITED),
        Extension("discreet.engine.model._state", ["src/discreet/engine/model/_state.c"], **LIMITED),
        Extension(
            "discreet.engine.factors._lengths",
            ["src/discreet/engine/factors/_lengths.c"],
            extra_compile_args=["-O3", "-fno-math-errno"],
            **LIMITED,
        ),
    ]
)
