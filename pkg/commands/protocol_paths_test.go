package commands_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

func TestLoadProtocolPaths(t *testing.T) {
	t.Parallel()
	one, two := watchProtocols(t), watchProtocols(t)
	two.write(t, "p.yaml", secondProtocol("1"))
	two.write(t, "draft", smallProtocol("lease: 15", ""))
	in := func(w *watchedFolder, name string) string { return filepath.Join(w.dir, name) }
	for _, test := range []struct {
		name  string
		paths []string
		want  []string // ids, or what stands in the error
	}{
		{"a folder", []string{one.dir}, []string{"p"}},
		{"two folders", []string{one.dir, two.dir}, []string{"a", "p"}},
		{"a file", []string{in(two, "p.yaml")}, []string{"a"}},
		{"a folder and a file", []string{one.dir, in(two, "p.yaml")}, []string{"a", "p"}},
		{"a folder and its file", []string{one.dir, in(one, "p.yaml"), one.dir + "/./p.yaml"}, []string{"p"}},
		{"a file of another ending", []string{in(two, "draft")}, []string{in(two, "draft") + ":3: lease is"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			registry, err := commands.LoadProtocolPaths(test.paths...)
			if err != nil {
				if !strings.Contains(err.Error(), test.want[0]) {
					t.Fatalf("LoadPaths = %v, want %s", err, test.want)
				}
				return
			}
			var ids []string
			for _, p := range registry.Protocols() {
				ids = append(ids, p.ID)
			}
			if diff := cmp.Diff(test.want, ids); diff != "" {
				t.Errorf("protocols (-want +got):\n%s", diff)
			}
		})
	}
}

// The error covers every faulty path, not just the first.
func TestLoadProtocolPaths_NamesAllFaults(t *testing.T) {
	t.Parallel()
	empty, one, two := t.TempDir(), watchProtocols(t), watchProtocols(t)
	missing := filepath.Join(empty, "missing")
	_, err := commands.LoadProtocolPaths(empty, missing, one.dir, two.dir)
	if !errors.Is(err, commands.ErrNoProtocols) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LoadPaths = %v, want %v and %v", err, commands.ErrNoProtocols, fs.ErrNotExist)
	}
	clash, ok := errors.AsType[*strictyaml.Error](err)
	if !ok || clash.File != filepath.Join(two.dir, "p.yaml") || !strings.Contains(clash.Message, "already claimed by "+one.dir) {
		t.Errorf("LoadPaths = %v, want that two folders claim the same", err)
	}
	if _, err := commands.LoadProtocolPaths(); !errors.Is(err, commands.ErrNoProtocols) {
		t.Errorf("no path: %v, want %v", err, commands.ErrNoProtocols)
	}
}
