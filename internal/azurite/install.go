package azurite

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/lucius-project/lucius/internal/npmcache"
)

// sources are the files of tools/azurite that define an installation. A change of
// any of them causes a new one.
var sources = []string{"package.json", "package-lock.json", "run.js"}

// install returns the directory of the pinned Azurite, and installs it on first use.
func install(ctx context.Context) (string, error) {
	tools, err := findTools()
	if err != nil {
		return "", err
	}
	files := make(map[string][]byte, len(sources))
	for _, name := range sources {
		if files[name], err = os.ReadFile(filepath.Join(tools, name)); err != nil {
			return "", err
		}
	}
	return npmcache.Install(ctx, "lucius-azurite", files)
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
