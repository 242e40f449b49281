package azurite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// sources are the files of tools/azurite that define an installation. A change of
// any of them causes a new one.
var sources = []string{"package.json", "package-lock.json", "run.js"}

// install returns the directory of the pinned Azurite, and installs it on first use.
// Concurrent processes wait for one another.
func install(ctx context.Context) (string, error) {
	files, err := readSources()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	home := filepath.Join(cache, "lucius-azurite")
	if err := os.MkdirAll(home, 0o750); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(home, "lock"))
	if err != nil {
		return "", fmt.Errorf("wait for another installation: %w", err)
	}
	defer unlock()

	dir := filepath.Join(home, fingerprint(files))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, installInto(ctx, home, dir, files)
}

// installInto installs into a scratch directory next to dir and renames it to dir, so
// that dir is complete or does not exist.
func installInto(ctx context.Context, home, dir string, files map[string][]byte) (err error) {
	scratch, err := os.MkdirTemp(home, "installing-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(scratch, name), text, 0o600); err != nil {
			return err
		}
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = scratch
	if output, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci (Node 20 or later and npm are needed): %w\n%s", err, bytes.TrimSpace(output))
	}
	return os.Rename(scratch, dir)
}

// readSources returns the content of the sources by name.
func readSources() (map[string][]byte, error) {
	tools, err := findTools()
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(sources))
	for _, name := range sources {
		if files[name], err = os.ReadFile(filepath.Join(tools, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// findTools looks for tools/azurite from the working directory upwards: the
// tests of a package run in its directory.
func findTools() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		tools := filepath.Join(dir, "tools", "azurite")
		if _, err := os.Stat(filepath.Join(tools, sources[0])); err == nil {
			return tools, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("tools/azurite was not found in any parent directory: run inside the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// fingerprint returns the name of the installation of these files.
func fingerprint(files map[string][]byte) string {
	hash := sha256.New()
	for _, name := range sources {
		_, _ = fmt.Fprintf(hash, "%s %d\n", name, len(files[name]))
		_, _ = hash.Write(files[name])
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}
