"""What a JupyterHub needs to know about Baton. Copy it into jupyterhub_config.py."""

from pathlib import Path

c = get_config()  # noqa: F821

c.JupyterHub.services.append(
    {
        "name": "baton",
        # The address of the broker, whose dashboard the Hub's proxy shows at /services/baton/.
        "url": "https://broker.example.edu:8470",
        # The broker reads the same token (`token_file` in broker.toml).
        "api_token": Path("/etc/baton/hub-token").read_text().strip(),
        "oauth_no_confirm": True,
    }
)
# Every user of the Hub may open the dashboard. Students see their own cells there; staff see those of their courses.
c.JupyterHub.load_roles.append({"name": "user", "scopes": ["self", "access:services!service=baton"]})
# The course ml101: its students and its staff.
c.JupyterHub.load_groups.update({"ml101": [], "ml101-staff": []})
# The broker's address for notebooks. They sign in with the token that the Hub gave to their server.
c.Spawner.environment.update({"BATON_BROKER_ADDRESS": "https://broker.example.edu:8470"})
