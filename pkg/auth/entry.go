package auth

import (
	"errors"
	"fmt"
	"strings"
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
	text, err := fresh(e)
	return strings.TrimPrefix(string(text), newFile), err
}

// stanza writes the lines.
func (e Entry) stanza() string {
	var text strings.Builder
	fmt.Fprintf(&text, "  - name: %q\n    tokens:\n      - %s\n    roles:\n", e.Name, e.TokenHash)
	for _, grant := range e.Grants {
		fmt.Fprintf(&text, "      - role: %s\n", grant.Role)
		if grant.All {
			fmt.Fprintf(&text, "        tenants: %q\n", Everyone)
		} else {
			fmt.Fprintf(&text, "        tenants: %s\n", flow(grant.Tenants))
		}
		if len(grant.Services) > 0 {
			fmt.Fprintf(&text, "        services: %s\n", flow(grant.Services))
		}
	}
	return text.String()
}

// flow writes a list on one line, quoted so that no text is taken for a number.
func flow(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = fmt.Sprintf("%q", text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// fresh returns a file with only the entry. The error says what is wrong with it.
func fresh(entry Entry) ([]byte, error) {
	if !namePattern.MatchString(entry.Name) {
		return nil, fmt.Errorf("name is %q and must be %s", entry.Name, nameRule)
	}
	if len(entry.Grants) == 0 {
		return nil, errors.New("a new caller needs at least one role")
	}
	text := []byte(newFile + entry.stanza())
	if _, err := parse("new entry", text); err != nil {
		return nil, err
	}
	return text, nil
}
