package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// Entry is the addition of a new token to a token file.
type Entry struct {
	// Name is the caller's name. Required.
	Name string
	// TokenHash is [HashToken] of the new token. Required.
	TokenHash string
	// Grants are the caller's roles. Required for a new caller; must be empty for a
	// caller in the file, which then gets the token.
	Grants []Grant
}

// newFile is the beginning of a token file.
const newFile = "# Who may call Lucius. `lucius token new --file` adds to it.\nversion: 1\ncallers:\n"

// Stanza returns the lines that add the entry to the list of callers, indented by
// two; without grants, the line that adds the token to an existing caller. The error
// says what is wrong with the entry.
func (e Entry) Stanza() (string, error) {
	if len(e.Grants) == 0 {
		return "      - " + e.TokenHash + "\n", nil
	}
	return e.newCaller()
}

// newCaller returns the lines of a new caller.
func (e Entry) newCaller() (string, error) {
	if !namePattern.MatchString(e.Name) {
		return "", fmt.Errorf("name is %q and must be %s", e.Name, nameRule)
	}
	if len(e.Grants) == 0 {
		return "", errors.New("a new caller needs at least one role")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "  - name: %q\n    tokens:\n      - %s\n    roles:\n", e.Name, e.TokenHash)
	for _, grant := range e.Grants {
		tenants := fmt.Sprintf("%q", Everyone)
		if !grant.All {
			tenants = flow(grant.Tenants)
		}
		fmt.Fprintf(&text, "      - role: %s\n        tenants: %s\n", grant.Role, tenants)
		if len(grant.Services) > 0 {
			fmt.Fprintf(&text, "        services: %s\n", flow(grant.Services))
		}
	}
	_, err := parse("new entry", []byte(newFile+text.String()))
	return text.String(), err
}

// flow writes a list on one line, quoted so that no text is read as a number.
func flow(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = fmt.Sprintf("%q", text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// ErrEdit is returned if an entry cannot be added to a token file without disturbing
// the rest of it, such as to lists in brackets.
var ErrEdit = errors.New("the file is laid out in a way that only people can edit: an entry is added to lists whose items " +
	"have lines and dashes of their own, not to lists in brackets, and the callers must come last")

// AppendFile adds the entry to a token file, or creates the file: as a new caller, or
// as one more token of an existing caller. Comments and layout stay. The file is
// replaced atomically, so that no reader sees half of it. Only its owner can read a
// new file; an existing one keeps its mode. Concurrent calls may lose an entry.
//
// It returns [ErrEdit], or an error that says what is wrong with the file or the
// entry.
func AppendFile(path string, entry Entry) error {
	file := strictyaml.Open(path, maxFileSize)
	if file.Err != nil && !errors.Is(file.Err, os.ErrNotExist) {
		return fmt.Errorf("token file: %w", file.Err)
	}
	changed, err := withEntry(path, file.Text, entry)
	if err != nil {
		return fmt.Errorf("add to the token file: %w", err)
	}
	if err := replace(path, changed); err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	return nil
}

// withEntry returns the text of a token file with the entry added. An empty text
// stands for a new file.
func withEntry(file string, text []byte, entry Entry) (string, error) {
	if len(text) == 0 {
		caller, err := entry.newCaller()
		return newFile + caller, err
	}
	before, err := parse(file, text)
	if err != nil {
		return "", err
	}
	r := &reader{}
	var callers []value
	r.document(text, func(top value) { callers = r.list(r.members(top, fileKeys)["callers"], maxCallers) })
	lines := strings.SplitAfter(strings.TrimRight(string(text), "\n"), "\n")
	lines[len(lines)-1] += "\n"

	// The addition goes after a line, with the indentation of the list item that
	// begins on the line of its sibling.
	addition, after, sibling := "  - "+entry.TokenHash+"\n", 0, 0
	want := len(before.callers)
	known := slices.IndexFunc(before.callers, func(c Caller) bool { return c.name == entry.Name })
	switch {
	case known < 0:
		if addition, err = entry.newCaller(); err != nil {
			return "", err
		}
		after, sibling = len(lines), callers[0].line
		want++
	case len(entry.Grants) > 0:
		return "", fmt.Errorf("the caller %s exists: omit --role to add a token", entry.Name)
	default:
		if tokens := r.list(r.members(callers[known], callerKeys)["tokens"], maxCredentials); len(tokens) > 0 {
			sibling = tokens[len(tokens)-1].line
			after = sibling
		}
	}
	if sibling == 0 {
		return "", ErrEdit
	}
	indent, _, found := strings.Cut(lines[sibling-1], "- ")
	if !found || strings.TrimSpace(indent) != "" {
		return "", ErrEdit
	}
	var indented strings.Builder
	for line := range strings.Lines(addition) {
		indented.WriteString(indent + strings.TrimPrefix(line, "  "))
	}
	changed := strings.Join(slices.Insert(lines, after, indented.String()), "")

	// The result must hold the token and nothing else that is new.
	sum, ok := parseHash(entry.TokenHash)
	read, err := parse("token file", []byte(changed))
	if err != nil || !ok || len(read.callers) != want {
		return "", ErrEdit
	}
	if caller, ok := read.byHash(sum); !ok || caller.name != entry.Name {
		return "", ErrEdit
	}
	return changed, nil
}

// replace replaces a file atomically.
func replace(path, text string) (err error) {
	mode := fs.FileMode(0o600)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // Keep a symbolic link.
		if info, err := os.Stat(path); err == nil {
			mode = info.Mode().Perm()
		}
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
