package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/cli"
)

func TestDoctor_ChecksFilesOfThisHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong")
	open, mine, file := filepath.Join(dir, "open"), filepath.Join(dir, "mine"), filepath.Join(dir, "file")
	for path, mode := range map[string]os.FileMode{wrong: 0o700, open: 0o755, mine: 0o750} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{filepath.Join(wrong, "p.yaml"): "steps: []\n", file: "x"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		protocols, data string
		ok              bool
		says            string
	}{
		{"", "", true, ""},
		{"../../protocols", "", true, "valid in ../../protocols"},
		{wrong, "", false, "p.yaml"},
		{"", mine, true, " free"},
		{"", open, runtime.GOOS == "windows", "other users of this host have access"},
		{"", file, false, "is not a folder"},
		{"", filepath.Join(dir, "none"), false, "does not exist"},
	} {
		ok, text := true, ""
		for _, check := range checkFiles(test.protocols, test.data) {
			ok = ok && check.OK
			text += check.Detail + "\n"
			if !check.OK && check.Todo == "" {
				t.Errorf("%q, %q: nothing to do about %s", test.protocols, test.data, check.Detail)
			}
		}
		if ok != test.ok || !strings.Contains(text, test.says) {
			t.Errorf("%q, %q: %v, %s", test.protocols, test.data, ok, text)
		}
	}
}

// The commands of the program and those that call a server share lucius protocols.
func TestCLI_ProtocolsOfTheServerAndOfFiles(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), longTimeouts...)
	c := terminalOf(t, s.url, "")
	c.want(0, "doc.ingest", "protocols", "list")
	c.want(0, "takes doc.ingest", "protocols", "validate", "../../protocols")
	out := c.want(0, "✓ token", "doctor", "--protocols-dir", "../../protocols")
	for _, says := range []string{"✓ server", "✓ ready", "✓ clock", "not required; without one you are local, with submit, read, platform, admin for all tenants", "✓ version", "✓ protocols"} {
		if !strings.Contains(out, says) {
			t.Errorf("lucius doctor does not say %q:\n%s", says, out)
		}
	}
	if help := c.want(0, "validate", "protocols", "--help"); !strings.Contains(help, "show") {
		t.Error(help)
	}
	c.want(cli.ExitNotFound, "there is no service", "services", "--service", "none")
}
