package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

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

// ErrEdit is returned if the YAML library cannot add an entry to a token file without
// disturbing the rest of it, such as to a list of callers in brackets.
var ErrEdit = errors.New("the file is laid out in a way that only people can edit: an entry is added to lists whose items " +
	"have lines and dashes of their own, not to lists in brackets, and a token to a caller that has one")

// AppendFile adds the entry to a token file, or creates the file: as a new caller, or
// as one more token of an existing caller. Comments stay, but not every space or empty line. The file is
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
	known := slices.IndexFunc(before.callers, func(c Caller) bool { return c.name == entry.Name })
	if known >= 0 && len(entry.Grants) > 0 {
		return "", fmt.Errorf("the caller %s exists: omit --role to add a token", entry.Name)
	}
	list, addition := fmt.Sprintf("$.callers[%d].tokens", known), "- "+entry.TokenHash+"\n"
	if known < 0 {
		list = "$.callers"
		if addition, err = entry.newCaller(); err != nil {
			return "", err
		}
		known = len(before.callers)
	}
	changed, err := merge(text, list, addition)
	if err != nil {
		return "", fmt.Errorf("%w (%s)", ErrEdit, Printable(err.Error()))
	}
	// The result must hold the token and nothing else that is new.
	sum, valid := parseHash(entry.TokenHash)
	_, had := before.tokens[sum]
	read, err := parse(file, []byte(changed))
	if err != nil || !valid || had || read.tokens[sum] != known || read.callers[known].name != entry.Name {
		return "", ErrEdit
	}
	delete(read.tokens, sum)
	read.callers = read.callers[:len(before.callers)]
	if !reflect.DeepEqual(before, read) {
		return "", ErrEdit
	}
	return changed, nil
}

// merge returns a text with the items added to the list at that path. The library panics on
// some texts.
func merge(text []byte, path, items string) (changed string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML library: %v", p)
		}
	}()
	list, err := yaml.PathString(path)
	if err != nil {
		return "", err
	}
	file, err := parser.ParseBytes(text, parser.ParseComments)
	if err == nil {
		err = list.MergeFromReader(file, strings.NewReader(items))
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(file.String(), "\n") + "\n", nil
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
