package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrEdit is returned if an entry cannot be added to a token file without disturbing
// the rest of it, such as to lists in brackets.
var ErrEdit = errors.New("the file is laid out in a way that only people can edit: an entry is added to lists whose items " +
	"have lines and dashes of their own, not to lists in brackets, and the callers must come last")

// withEntry returns the token file with the entry added: as a new caller, or as one
// more token of an existing caller. Comments and layout stay. An empty text stands
// for a new file.
func withEntry(file string, text []byte, entry Entry) ([]byte, error) {
	if len(text) == 0 {
		return fresh(entry)
	}
	had, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(strings.TrimRight(string(text), "\n"), "\n")
	lines[len(lines)-1] += "\n"
	known := slices.IndexFunc(had.callers, func(c Caller) bool { return c.name == entry.Name })
	if known < 0 {
		if _, err := fresh(entry); err != nil {
			return nil, err
		}
		stanza, err := indented(entry.stanza(), lines, lineOfCaller(text, 0))
		if err != nil {
			return nil, err
		}
		return edited(lines, len(lines), stanza, entry, len(had.callers)+1)
	}
	if len(entry.Grants) > 0 {
		return nil, fmt.Errorf("the caller %s is there already: leave its roles out to give it one more token", entry.Name)
	}
	line := lineOfLastToken(text, known)
	item, err := indented("  - "+entry.TokenHash+"\n", lines, line)
	if err != nil {
		return nil, err
	}
	return edited(lines, line, item, entry, len(had.callers))
}

// indented changes the text's indentation of two to that of the list item which
// begins on that line. It returns [ErrEdit] if no item begins there.
func indented(text string, lines []string, line int) (string, error) {
	if line == 0 {
		return "", ErrEdit
	}
	indent, _, found := strings.Cut(lines[line-1], "- ")
	if !found || strings.TrimSpace(indent) != "" {
		return "", ErrEdit
	}
	var out strings.Builder
	for part := range strings.Lines(text) {
		out.WriteString(indent + strings.TrimPrefix(part, "  "))
	}
	return out.String(), nil
}

// edited inserts the text after that many lines, and checks that the result parses
// as intended.
func edited(lines []string, behind int, text string, entry Entry, callers int) ([]byte, error) {
	whole := []byte(strings.Join(slices.Insert(lines, behind, text), ""))
	read, err := parse("token file", whole)
	sum, ok := parseHash(entry.TokenHash)
	if err != nil || !ok || len(read.callers) != callers {
		return nil, ErrEdit
	}
	for _, held := range read.tokens[bucketOf(sum)] {
		if held.sum == sum && read.callers[held.caller].name == entry.Name {
			return whole, nil
		}
	}
	return nil, ErrEdit
}

// callerValue returns the i-th caller of a file that was parsed before.
func callerValue(text []byte, i int) (*reader, value) {
	r := &reader{}
	top, _ := r.document(text)
	return r, r.list(r.members(top, fileKeys...)["callers"], maxCallers)[i]
}

// lineOfCaller returns the line on which the i-th caller begins.
func lineOfCaller(text []byte, i int) int {
	_, v := callerValue(text, i)
	return v.line
}

// lineOfLastToken returns the line of the last token of the i-th caller, or 0 if it
// has none.
func lineOfLastToken(text []byte, i int) int {
	r, v := callerValue(text, i)
	tokens := r.list(r.members(v, callerKeys...)["tokens"], maxCredentials)
	if len(tokens) == 0 {
		return 0
	}
	return tokens[len(tokens)-1].line
}

// AppendFile adds the entry to a token file, or creates the file: as a new caller, or
// as one more token of an existing caller. Comments and layout stay. The file is
// replaced atomically, so that no reader sees half of it. Only its owner can read a
// new file; an existing one keeps its mode. Concurrent calls may lose an entry.
//
// It returns [ErrEdit], or an error that says what is wrong with the file or the
// entry.
func AppendFile(path string, entry Entry) error {
	text, err := readLimited(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("token file: %w", err)
	}
	changed, err := withEntry(path, text, entry)
	if err != nil {
		return fmt.Errorf("add to the token file: %w", err)
	}
	return replace(path, changed)
}

// replace replaces a file atomically.
func replace(path string, text []byte) (err error) {
	mode := fs.FileMode(0o600)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // Keep a symbolic link.
		if info, err := os.Stat(path); err == nil {
			mode = info.Mode().Perm()
		}
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	if err = os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	return nil
}
