//go:build unix

package npmcache_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/internal/npmcache"
)

// npm puts a program that says it is npm first on the path, and a new cache directory under the user.
func npm(t *testing.T, script string) (calls string) {
	t.Helper()
	bin := t.TempDir()
	calls = filepath.Join(bin, "calls")
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\necho \"$@\" >>"+calls+"\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // On macOS the cache directory is in it.
	return calls
}

func files(version string) map[string][]byte {
	return map[string][]byte{"package.json": []byte(version), "run.js": []byte("program")}
}

func TestInstall_IsDoneOnceForEachVersion(t *testing.T) { //nolint:paralleltest // It sets variables of the process.
	calls := npm(t, "mkdir node_modules")
	var dirs [4]string
	var group sync.WaitGroup
	for i := range dirs {
		group.Go(func() {
			var err error
			if dirs[i], err = npmcache.Install(t.Context(), "some", files("1")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	other, err := npmcache.Install(t.Context(), "some", files("2"))
	if err != nil || other == dirs[0] {
		t.Errorf("another version is in %s, %v", other, err)
	}
	for _, dir := range dirs {
		for _, name := range []string{"package.json", "run.js", "node_modules"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil || dir != dirs[0] {
				t.Errorf("%s in %s: %v", name, dir, err)
			}
		}
	}
	if text, err := os.ReadFile(calls); err != nil || strings.Count(string(text), "ci --omit=dev --ignore-scripts") != 2 {
		t.Errorf("npm was called with\n%s, %v", text, err)
	}
}

func TestInstall_ThatFailsLeavesNothing(t *testing.T) { //nolint:paralleltest // It sets variables of the process.
	npm(t, "echo no such package; exit 1")
	if dir, err := npmcache.Install(t.Context(), "some", files("1")); err == nil || !strings.Contains(err.Error(), "no such package") {
		t.Errorf("a failed installation returns %s, %v", dir, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(cache, "some")); err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Errorf("it leaves %v, %v", left, err)
	}
	npm(t, "mkdir node_modules")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := npmcache.Install(over, "some", files("1")); err == nil {
		t.Error("an installation that was given up succeeds")
	}
}
