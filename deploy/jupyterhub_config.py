"""What a JupyterHub needs to know of Baton; for jupyterhub_config.py."""

from pathlib import Path

c = get_config()  # noqa: F821

c.JupyterHub.services.append(
    {
        "name": "baton",
        # Where the Hub's proxy finds the broker: it shows the dashboard at /services/baton/.
        "url": "https://broker.example.edu:8470",
        # The same as in /etc/baton/hub-token.
        "api_token": Path("/etc/baton/hub-token").read_text().strip(),
        "oauth_no_confirm": True,
    }
)
# Who may open the dashboard. Students see their own cells there, staff those of their courses.
c.JupyterHub.load_roles.append({"name": "user", "scopes": ["self", "access:services!service=baton"]})
# The course ml101: its students, and its staff.
c.JupyterHub.load_groups.update({"ml101": [], "ml101-staff": []})
# Where notebooks find the broker; they come with the token that the Hub gave to their server.
c.Spawner.environment.update({"BATON_BROKER_ADDRESS": "https://broker.example.edu:8470"})
