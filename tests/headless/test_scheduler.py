"""A job of jupyter-scheduler whose execution manager is ours; the extra `scheduler` is not among what tests need."""

import json

import pytest

from .running import write_notebook

orm = pytest.importorskip("jupyter_scheduler.orm")
scheduler = pytest.importorskip("jupyter_gpuckpt.headless.scheduler")


def test_a_job_is_executed_with_its_parameters(module_daemon_env, tmp_path, monkeypatch):
    for name, value in module_daemon_env.items():
        monkeypatch.setenv(name, value)
    staged = write_notebook(tmp_path / "in.ipynb", ["x = 1", "x * 2"], tags={0: ["parameters"]})
    url = f"sqlite:///{tmp_path}/jobs.sqlite"
    orm.create_tables(url)
    with orm.create_session(url)() as session:
        job = orm.Job(
            name="job",
            runtime_environment_name="env",
            input_filename="in.ipynb",
            output_formats=["ipynb"],
            parameters={"x": "21"},
        )
        session.add(job)
        session.commit()
        job_id = job.job_id
    paths = {"input": str(staged), "ipynb": str(tmp_path / "out.ipynb")}
    scheduler.GpuCkptExecutionManager(job_id, str(tmp_path), url, paths).process()
    with orm.create_session(url)() as session:
        job = session.query(orm.Job).filter(orm.Job.job_id == job_id).one()
        assert (job.status, job.status_message) == ("COMPLETED", None)
    result = json.loads((tmp_path / "out.ipynb").read_text())["cells"][-1]["outputs"][0]
    assert "".join(result["data"]["text/plain"]) in {"42", "'2121'"}
