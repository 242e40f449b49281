package pgsession_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/pkg/pgsession"
)

// The field Severity of an error is in the server's language; the unlocalized severity is
// not.
func TestRolledBack_UnderstandsEveryLanguage(t *testing.T) {
	t.Parallel()
	if !pgsession.RolledBack(&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR"}) {
		t.Error("an error of a German server is not known as one")
	}
	if pgsession.RolledBack(&pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "FATAL"}) {
		t.Error("a session that was ended is taken for a transaction that was rolled back")
	}
}
