package upkeep_test

import "testing"

// TestTableLayout has what holds in the layout "ledger" hold in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Sweeper_DeadlinesAreActedOn":                          TestSweeper_DeadlinesAreActedOn,
		"Sweeper_ADeadlineThatPassedBeforeTheStartGetsAGrace":  TestSweeper_ADeadlineThatPassedBeforeTheStartGetsAGrace,
		"Sweeper_OneBadJobHoldsUpNoOther":                      TestSweeper_OneBadJobHoldsUpNoOther,
		"Sweeper_AnOutageOfTheStoreGivesAGraceAfterwards":      TestSweeper_AnOutageOfTheStoreGivesAGraceAfterwards,
		"Sweeper_AStandstillOfTheProcessGivesAGraceAfterwards": TestSweeper_AStandstillOfTheProcessGivesAGraceAfterwards,
		"Sweeper_AnIdlePassReadsOnePagePerShard":               TestSweeper_AnIdlePassReadsOnePagePerShard,
	} {
		t.Run(name, test)
	}
}
