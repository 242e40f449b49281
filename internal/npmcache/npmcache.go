// Package npmcache installs packages of npm, pinned by a lock file, for tests and tools: once
// for each user and version of the lock file, in the user's cache directory. It needs npm on
// the path.
//
//	package.json, package-lock.json, …    pin the installation
//	        │ npm ci, once, under a lock
//	        ▼
//	user cache/<name>/<hash>              shared by all programs
package npmcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Install returns the directory that holds the files and the packages that they pin. The files
// are named by what they are called there: package.json, package-lock.json, and any other that
// the installation needs. It is installed on first use, without running scripts of packages.
// Concurrent processes wait for one another.
func Install(ctx context.Context, name string, files map[string][]byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	home := filepath.Join(cache, name)
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

// fingerprint returns the name of the installation of these files.
func fingerprint(files map[string][]byte) string {
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, _ = fmt.Fprintf(hash, "%s %d\n", name, len(files[name]))
		_, _ = hash.Write(files[name])
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}
