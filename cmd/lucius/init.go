package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
)

// projectFiles are what lucius init writes: the folder common, and that of the language. A name
// loses the ending .txt.
//
//go:embed all:project
var projectFiles embed.FS

// project is what the README of a starter folder says about its worker, which is in one
// language.
type project struct {
	Worker, Test string // files
	Install      string // makes the SDK of a clone available
	Run, RunTest string
}

// defaultLanguage is that of the worker if the user names none.
const defaultLanguage = "python"

// projects are the starter folders by the language of their worker.
var projects = map[string]project{
	defaultLanguage: {
		Worker: "worker.py", Test: "test_worker.py",
		Install: `export PYTHONPATH="$CLONE/sdk/python"   # or: pip install "$CLONE/sdk/python"`,
		Run:     "python3 worker.py", RunTest: "python3 -m unittest",
	},
	"go": {
		Worker: "worker.go", Test: "worker_test.go",
		Install: `go work init . "$CLONE/sdk/go" "$CLONE/sdk/go/luciustest"`,
		Run:     "go run .", RunTest: "go test .",
	},
	"typescript": {
		Worker: "worker.ts", Test: "worker.test.ts",
		Install: `npm install --install-links "$CLONE/sdk/typescript"`,
		Run:     "npm start", RunTest: "npm test",
	},
}

// initialize returns lucius init, which writes a starter folder.
func (p *program) initialize() *cobra.Command {
	var force bool
	var language string
	cmd := &cobra.Command{
		Use: "init [DIR]", GroupID: cli.GroupSetUp, Short: "Write a folder to begin with", Args: cli.Takes(0, 1),
		Long: "Writes a protocol of three steps, a command, a worker with its test, a compose file and a README into\n" +
			"the folder, by default the current one. It overwrites no file unless --force is given.",
		Example: "  lucius init && lucius dev\n  lucius init --lang go pipeline",
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			written, err := writeProject(dir, language, force)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.Stdout, "wrote %s\n\n", strings.Join(written, "\n      "))
			if dir != "." {
				fmt.Fprintf(p.Stdout, "cd %s\n", dir)
			}
			_, err = fmt.Fprintln(p.Stdout, "lucius dev   # runs a job; README.md says how to run your own worker")
			return err
		},
	}
	cmd.Flags().StringVar(&language, "lang", defaultLanguage, "language of the worker: python, go or typescript")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite files")
	return cmd
}

// writeProject writes the files into the folder and returns their paths. Without force, it
// writes nothing if it would overwrite a file.
func writeProject(dir, language string, force bool) (written []string, err error) {
	about, known := projects[language]
	if !known {
		return nil, &cli.Error{Code: cli.ExitUsage, Err: fmt.Errorf("--lang is %q, it must be python, go or typescript", language)}
	}
	contents := map[string][]byte{}
	for _, folder := range []string{"project/common", "project/" + language} {
		err = fs.WalkDir(projectFiles, folder, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			path := filepath.Join(dir, filepath.FromSlash(strings.TrimSuffix(strings.TrimPrefix(name, folder), ".txt")))
			if err := checkFree(path, force); err != nil {
				return err
			}
			contents[path], err = fs.ReadFile(projectFiles, name)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	readme := filepath.Join(dir, "README.md")
	var text bytes.Buffer
	if err := template.Must(template.New("").Parse(string(contents[readme]))).Execute(&text, about); err != nil {
		return nil, err
	}
	contents[readme] = text.Bytes()
	written = slices.Sorted(maps.Keys(contents))
	for _, path := range written {
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(contents[path], []byte("#!")) {
			mode = 0o755
		}
		// The container of compose.yaml reads the folders as another user.
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // They hold no secrets.
			return nil, err
		}
		if err := os.WriteFile(path, contents[path], mode); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// checkFree refuses a path with a file, unless forced, and a path in a folder that cannot
// be created.
func checkFree(path string, force bool) error {
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		return &cli.Error{Code: cli.ExitRefused, Err: fmt.Errorf(
			"%s is a file, but the project has a folder of that name: nothing was written. Name another folder: lucius init DIR", folder)}
	}
	if _, err := os.Lstat(path); force || errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for %s: %w", path, err)
	}
	return &cli.Error{Code: cli.ExitRefused, Err: fmt.Errorf("%s exists: nothing was written. --force overwrites it", path)}
}
