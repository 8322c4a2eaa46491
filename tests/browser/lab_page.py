"""A page of JupyterLab that tests use one after the other."""

from tests.browser.notebook_page import POLLING, NotebookPage, complaints_in

SIZE = {"width": 1280, "height": 800}

#: Closes all documents and consoles without a question, and shows what a page shows that has just been loaded. Nobody seems to look at
#: the page from now on, so it will not offer to undo the end of the kernels.
CLEAR = """async () => {
  document.hasFocus = () => false;
  const { shell, commands } = window.jupyterapp;
  for (const widget of [...shell.widgets('main')]) {
    widget.dispose();
  }
  shell.collapseRight();
  await commands.execute('filebrowser:activate');
}"""

#: Somebody looks at the page again.
LOOK = "() => { delete document.hasFocus; }"

#: Closes all notifications; returns whether there are none.
CLOSE_NOTIFICATIONS = """() => {
  document.querySelectorAll('.jp-Notification-Toast-Close').forEach(button => button.click());
  return document.querySelectorAll('.Toastify__toast').length === 0;
}"""


class LabPage:
    """A page of JupyterLab that is loaded once, by the first test that needs it."""

    def __init__(self):
        self.page = self._server = None

    def open_notebook(self, context, expect, server, name):
        """Open a notebook beside those that are open; load the page if there is none of this server."""
        if self.page is not None and self._server is server:
            notebook = NotebookPage(self.page, expect, server, name).show(name)
            self.page.evaluate(LOOK)
            return notebook
        self.close()
        self.page, self._server = context.new_page(), server
        # Of unsaved changes, when the page is loaded anew.
        self.page.on("dialog", lambda dialog: dialog.accept())
        complaints = complaints_in(self.page)
        notebook = NotebookPage(self.page, expect, server, name).open()
        assert complaints == []
        return notebook

    def clear(self):
        """Close what a test has opened."""
        if self.page is not None:
            self.page.set_viewport_size(SIZE)
            self.page.evaluate(CLEAR)

    def close_notifications(self):
        """Close all notifications."""
        if self.page is not None:
            self.page.wait_for_function(CLOSE_NOTIFICATIONS, polling=POLLING)

    def close(self):
        """Close the page; the next test has a new one."""
        if self.page is not None:
            self.page.close()
        self.page = self._server = None
