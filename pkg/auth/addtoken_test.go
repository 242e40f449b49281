package auth_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

func content(t *testing.T, path string) string {
	t.Helper()
	text := musttest.ReadFile(t, path)
	return string(text)
}

func TestAppendFile_CreatesAFileThatOnlyItsOwnerReads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	token := auth.NewToken()
	entry := auth.Entry{Name: "@ci", TokenHash: hash(token), Grants: grants(t, "submit:007,true", "platform:*:ocr")}
	musttest.NoError(t, auth.AppendFile(path, entry))
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %s (%v)", info.Mode(), err)
	}
	file := musttest.Make(t, auth.OpenFile, path)
	caller := authenticate(t, file, token)
	if caller.Name() != "@ci" || !caller.May(auth.Submit, "007") || !caller.May(auth.Submit, "true") || !caller.MayServe("x", "ocr") || caller.MayServe("x", "y") {
		t.Errorf("the caller is %+v in\n%s", caller, content(t, path))
	}
}

func TestAppendFile_KeepsTheRestOfTheFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after string }{
		"a new caller": {
			"# Ours.\nversion: 1\ncallers: # people\n  # mine\n  - name: a # me\n    tokens: [" + hash("a") + "]\n    roles: [{role: read, tenants: [t]}]\n\n# the end\n\n",
			"# Ours.\nversion: 1\ncallers: # people\n  # mine\n  - name: a # me\n    tokens: [" + hash("a") + "]\n    roles: [{role: read, tenants: [t]}]\n" +
				"  - name: \"ci\"\n    tokens:\n      - " + hash("new") + "\n    roles:\n      - role: read\n        tenants: \"*\"\n\n# the end\n",
		},
		"a key follows the callers": {
			"callers:\n- name: a\n  tokens: [" + hash("a") + "]\n  roles: [{role: read, tenants: [t]}]\nversion: 1\n",
			"callers:\n- name: a\n  tokens: [" + hash("a") + "]\n  roles: [{role: read, tenants: [t]}]\n" +
				"- name: \"ci\"\n  tokens:\n    - " + hash("new") + "\n  roles:\n    - role: read\n      tenants: \"*\"\nversion: 1\n",
		},
		"without a line feed at the end, and indented by none": {
			"version: 1\ncallers:\n- name: a\n  tokens: [" + hash("a") + "]\n  roles: [{role: read, tenants: [t]}]",
			"version: 1\ncallers:\n- name: a\n  tokens: [" + hash("a") + "]\n  roles: [{role: read, tenants: [t]}]\n" +
				"- name: \"ci\"\n  tokens:\n    - " + hash("new") + "\n  roles:\n    - role: read\n      tenants: \"*\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := put(t, "tokens.yaml", test.before)
			musttest.NoError(t, os.Chmod(path, 0o640))
			musttest.NoError(t, auth.AppendFile(path, auth.Entry{Name: "ci", TokenHash: hash("new"), Grants: grants(t, "read:*")}))
			if diff := cmp.Diff(test.after, content(t, path)); diff != "" {
				t.Errorf("the file (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("the mode is %s (%v)", info.Mode(), err)
			}
		})
	}
}

func TestAppendFile_AddsATokenToACaller(t *testing.T) {
	t.Parallel()
	before := head + stanza("a", "1", "{role: read, tenants: [t]}") + "  # second\n" + stanza("b", "2", "{role: read, tenants: [t]}")
	path := put(t, "tokens.yaml", before)
	link := filepath.Join(t.TempDir(), "link")
	musttest.NoError(t, os.Symlink(path, link))
	musttest.NoError(t, auth.AppendFile(link, auth.Entry{Name: "a", TokenHash: hash("3")}))
	want := strings.Replace(before, hash("1")+"\n", hash("1")+"\n      - "+hash("3")+"\n", 1)
	if diff := cmp.Diff(want, content(t, path)); diff != "" {
		t.Errorf("the file (-want +got):\n%s", diff)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %s (%v)", info.Mode(), err)
	}
}

func TestAppendFile_LeavesTheFileAloneIf(t *testing.T) {
	t.Parallel()
	fine := head + stanza("a", "1", "{role: read, tenants: [t]}")
	flow := "version: 1\ncallers: [{name: a, tokens: ['" + hash("1") + "'], roles: [{role: read, tenants: [t]}]}]\n"
	for name, test := range map[string]struct {
		before string
		entry  auth.Entry
		want   string
	}{
		"it has mistakes":                 {"version: 1\n", auth.Entry{Name: "b", TokenHash: hash("2"), Grants: grants(t, "read:*")}, "tokens.yaml:1: callers must name"},
		"the caller has roles":            {fine, auth.Entry{Name: "a", TokenHash: hash("2"), Grants: grants(t, "read:*")}, "the caller a exists"},
		"a new caller has none":           {fine, auth.Entry{Name: "b", TokenHash: hash("2")}, "needs at least one role"},
		"a name is invalid":               {fine, auth.Entry{Name: "b c", TokenHash: hash("2"), Grants: grants(t, "read:*")}, `name is "b c"`},
		"a hash is invalid":               {fine, auth.Entry{Name: "b", TokenHash: "x", Grants: grants(t, "read:*")}, "sha256:"},
		"the token is there":              {fine, auth.Entry{Name: "b", TokenHash: hash("1"), Grants: grants(t, "read:*")}, auth.ErrEdit.Error()},
		"callers are in brackets":         {flow, auth.Entry{Name: "b", TokenHash: hash("2"), Grants: grants(t, "read:*")}, "not to lists in brackets"},
		"tokens are in brackets":          {flow, auth.Entry{Name: "a", TokenHash: hash("2")}, auth.ErrEdit.Error()},
		"the caller has certificates":     {head + "  - name: a\n    certificates: [cn:a]\n    roles: [{role: read, tenants: [t]}]\n", auth.Entry{Name: "a", TokenHash: hash("2")}, auth.ErrEdit.Error()},
		"a new file would have no caller": {"", auth.Entry{Name: "b", TokenHash: hash("2")}, "needs at least one role"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := put(t, "tokens.yaml", test.before)
			err := auth.AppendFile(path, test.entry)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("answered %v, want %q", err, test.want)
			}
			if content(t, path) != test.before {
				t.Error("the file was changed")
			}
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("the folder holds %v (%v)", left, err)
			}
		})
	}
}

func TestAppendFile_ReportsWhatItCannotReadOrWrite(t *testing.T) {
	t.Parallel()
	entry := auth.Entry{Name: "b", TokenHash: hash("2"), Grants: grants(t, "read:*")}
	if err := auth.AppendFile(t.TempDir(), entry); err == nil || !strings.Contains(err.Error(), "token file") {
		t.Errorf("a folder: %v", err)
	}
	if err := auth.AppendFile(filepath.Join(t.TempDir(), "none", "tokens.yaml"), entry); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestEntry_Stanza(t *testing.T) {
	t.Parallel()
	one := auth.Entry{Name: "ci", TokenHash: hash("1"), Grants: grants(t, "platform:*:ocr")}
	text, err := one.Stanza()
	want := "  - name: \"ci\"\n    tokens:\n      - " + hash("1") + "\n    roles:\n      - role: platform\n        tenants: \"*\"\n        services: [\"ocr\"]\n"
	if diff := cmp.Diff(want, text); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if text, err := (auth.Entry{Name: "ci", TokenHash: hash("1")}).Stanza(); text != "      - "+hash("1")+"\n" || err != nil {
		t.Errorf("another token: %q, %v", text, err)
	}
	if _, err := (auth.Entry{Name: "c i", TokenHash: hash("1"), Grants: one.Grants}).Stanza(); err == nil {
		t.Error("a name with a space was accepted")
	}
}
