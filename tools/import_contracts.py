"""Two contract types for import-linter, about direct imports, that put up with absent modules.

The types that come with import-linter refuse to name a module that does not exist, and list the
forbidden: a new folder would be free of every rule. These list the allowed.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def _covers(names: set[str], module: str, roots: set[str]) -> bool:
    """Whether `module` is one of `names` or below one; a root package stands for itself alone."""
    return any(
        module == name or (name not in roots and module.startswith(f"{name}.")) for name in names
    )


class _DirectImportsContract(Contract):
    """Shared: fails for every direct import that `_illegal` names."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001
        """Asks `_illegal` about each direct import of the root packages."""
        del verbose
        roots = set(self.session_options["root_packages"])
        found = []
        for importer in sorted(graph.modules):
            if importer.split(".")[0] not in roots:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if self._illegal(importer, imported, roots):
                    lines = graph.get_import_details(importer=importer, imported=imported)
                    found.append((importer, imported, [line["line_number"] for line in lines]))
        return ContractCheck(kept=not found, metadata={"illegal": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line per illegal import."""
        for importer, imported, lines in check.metadata["illegal"]:
            where = ", ".join(map(str, lines))
            output.print_error(f"- {importer} -> {imported} (l.{where})", bold=False)
        output.new_line()

    def _illegal(self, importer: str, imported: str, roots: set[str]) -> bool:
        raise AssertionError("a contract type says what is illegal")


class OnlyFromContract(_DirectImportsContract):
    """`modules` (own or third-party, with what is below them) are imported by `importers` only.

    Each of the modules may import itself, but not the others.
    """

    modules: Any = fields.SetField(subfield=fields.StringField())
    importers: Any = fields.SetField(subfield=fields.StringField())

    def _illegal(self, importer: str, imported: str, roots: set[str]) -> bool:
        del roots  # a root package that is named here is meant whole
        hit = {module for module in self.modules if _covers({module}, imported, set())}
        return bool(hit) and not _covers(hit | self.importers, importer, set())


class ImportsOnlyContract(_DirectImportsContract):
    """`packages` import, of the root packages, only themselves and `allowed`.

    A root package in `allowed` means the module itself (its version), not what is below it.
    """

    packages: Any = fields.SetField(subfield=fields.StringField())
    allowed: Any = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def _illegal(self, importer: str, imported: str, roots: set[str]) -> bool:
        own = {package for package in self.packages if _covers({package}, importer, set())}
        if not own or imported.split(".")[0] not in roots:
            return False
        return not (_covers(own, imported, set()) or _covers(self.allowed, imported, roots))
