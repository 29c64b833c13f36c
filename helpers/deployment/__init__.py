"""What a checkpoint is deployed on: release, flags, environment variables, GPU, and the user's own launch command."""

from helpers.deployment.deployment import Deployment
from helpers.deployment.flags import a2a_backends, quantizations, runners
from helpers.deployment.gpus import DEFAULT_GPU, GPUS, Gpu, gpu
from helpers.deployment.launch import parse_launch
from helpers.deployment.model_types import keeps_nested_section, releases_with
from helpers.deployment.plain import deployment
from helpers.deployment.releases import DEFAULT_RELEASE, RELEASES, Release, release

__all__ = [
    "DEFAULT_GPU",
    "DEFAULT_RELEASE",
    "GPUS",
    "RELEASES",
    "Deployment",
    "Gpu",
    "Release",
    "a2a_backends",
    "deployment",
    "gpu",
    "keeps_nested_section",
    "parse_launch",
    "quantizations",
    "release",
    "releases_with",
    "runners",
]
