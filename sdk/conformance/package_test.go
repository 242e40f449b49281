//go:build sdk

package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// npm packs a fresh clone of the TypeScript SDK with its built files, and installs it from a
// folder and from that package: each can be imported.
func TestPackage_OfAFreshCloneCanBeImported(t *testing.T) {
	t.Parallel()
	clone, app := t.TempDir(), t.TempDir()
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", cmd, err, out, said.String())
		}
		return string(out)
	}
	files := strings.FieldsSeq(run("../..", "git", "ls-files", "-co", "--exclude-standard", "sdk/typescript", "tools/npm-install"))
	for name := range files {
		to := filepath.Join(clone, filepath.FromSlash(name))
		info, err := os.Stat(filepath.Join("../..", name))
		if err != nil {
			continue // It is deleted and not committed.
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, text, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sdk := filepath.Join(clone, "sdk", "typescript")
	if listed := run(sdk, "npm", "pack", "--dry-run", "--json"); !strings.Contains(listed, `"dist/src/index.d.ts"`) {
		t.Errorf("npm would pack:\n%s", listed)
	}
	if err := os.RemoveAll(filepath.Join(sdk, "dist")); err != nil {
		t.Fatal(err)
	}
	packed := strings.TrimSpace(run(sdk, "npm", "pack", "--silent"))
	if err := os.RemoveAll(filepath.Join(sdk, "dist")); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{filepath.Join(sdk, packed), sdk} {
		run(app, "npm", "install", "--no-save", "--omit=dev", "--no-audit", "--no-fund", source)
		got := run(app, "node", "--input-type=module", "-e", `import { Worker } from "lucius"; console.log(typeof Worker)`)
		if got != "function\n" {
			t.Errorf("%s: its worker is %s", source, got)
		}
	}
}
