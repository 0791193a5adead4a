"""The Helm chart, rendered by Helm, and checks of every manifest.

Helm and the schemas are imported where they are used, because tests that need a GPU are collected on machines without
them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/kubernetes/baton"
NAMESPACE = "jupyter"
RELEASE = "baton"

VERSIONS = ("1.33", "1.35", "1.37")

CUSTOM = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
"""Modules with models that are generated from published custom resource definitions."""

Manifest = dict[str, Any]


def lint(values: dict[str, Any], version: str) -> list[str]:
    """Warnings and errors of `helm lint --strict`."""
    import helm_python

    report = helm_python.lint(CHART, values, strict=True, namespace=NAMESPACE, kube_version=f"v{version}.0")
    found = [message["error"] for message in report["messages"] if message["severity"] > 1]
    return [*found, *report["errors"]]


def render(values: dict[str, Any], version: str = VERSIONS[-1]) -> list[Manifest]:
    """As `helm template --kube-version` does; Chart.render() has no argument for that."""
    import helm_python
    from helm_python import _native as native

    options = {"name": RELEASE, "namespace": NAMESPACE, "is_install": True, "kube_version": f"v{version}.0"}
    with helm_python.Chart.load(CHART) as chart:
        rendered = native.call_string("helm_render", chart._raw(), json.dumps(values), json.dumps(options))
    texts = json.loads(rendered)
    manifests = [
        manifest
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest is not None
    ]
    assert manifests
    return manifests


def notes(values: dict[str, Any]) -> str:
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        return chart.render(values, name=RELEASE, namespace=NAMESPACE)[f"{chart.name}/templates/NOTES.txt"]


def validate(manifest: Manifest, version: str) -> None:
    """Checks it against the published schema of its kind; unknown keys are errors."""
    import jsonschema
    import kubernetes_validate

    models = CUSTOM.get(manifest["apiVersion"])
    if models is None:
        kubernetes_validate.validate(manifest, version, strict=True)
    else:
        jsonschema.validate(manifest, strict_schema(models, manifest["kind"]))
    for template in pod_templates(manifest):
        if models is not None:
            # A custom resource's pods are checked like those of a Job.
            spec = {"template": template}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
            kubernetes_validate.validate(job, version, strict=True)


@cache
def strict_schema(module: str, kind: str) -> dict[str, Any]:
    model = getattr(importlib.import_module(module), kind)
    schema: dict[str, Any] = model.model_json_schema(by_alias=True)
    for part in [schema, *schema.get("$defs", {}).values()]:
        if "properties" in part:
            part.setdefault("additionalProperties", False)
    return schema


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    match manifest["kind"]:
        case "StatefulSet":
            yield manifest["spec"]["template"]
        case "ScaledJob":
            yield manifest["spec"]["jobTargetRef"]["template"]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found
