"""The names of tools' branches."""

from jupyter_gpuckpt.wire.tool_branches import (
    branch_name,
    is_branch_of,
    is_tool_branch,
    origin_of,
)

KERNEL = "12345678-9abc-4def-8012-3456789abcde"
FIRST, SECOND = "aaaa1111-0000", "bbbb2222-0000"


def test_a_branch_of_a_branch_belongs_to_the_first_kernel():
    name = branch_name("folder/work.ipynb", KERNEL, FIRST)
    assert name == "folder/work.ipynb-tool-12345678-aaaa"
    deeper = branch_name(name, FIRST, SECOND)
    assert deeper == "folder/work.ipynb-tool-12345678-bbbb"
    for one in (name, deeper):
        assert is_tool_branch(one)
        assert is_branch_of(one, KERNEL)
        assert not is_branch_of(one, FIRST)
        assert origin_of(one, SECOND) == KERNEL[:8]


def test_any_other_name_is_no_branch():
    for name in ("", "work.ipynb", "work-branch-1.ipynb", "a-tool-b", "work.ipynb-tool-12345678"):
        assert not is_tool_branch(name)
        assert not is_branch_of(name, KERNEL)
        assert not is_branch_of(name, "")
        assert origin_of(name, KERNEL) == KERNEL[:8]


def test_kernels_whose_ids_are_short_or_have_dashes_have_branches():
    for kernel_id in ("k", "my-kernel-1", "a.b_c"):
        assert is_branch_of(branch_name("n.ipynb", kernel_id, FIRST), kernel_id)
