package search_test

import "testing"

// TestTableLayout runs tests of the layout "ledger" in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them calls t.Parallel.
	for name, test := range map[string]func(*testing.T){
		"Payload_HoldsEachStepsPart":           TestPayload_HoldsEachStepsPart,
		"Get_MissingJob":                       TestGet_MissingJob,
		"Wait":                                 TestWait,
		"Wait_SeesAJobThatAnotherProcessEnded": TestWait_SeesAJobThatAnotherProcessEnded,
		"List_NamesTheInvalidParameter":        TestList_NamesTheInvalidParameter,
		"Lineage_IsTheWholeChain":              TestLineage_IsTheWholeChainFromAnyOfItsJobs,
		"Follow_ContinuesAfterAnEntry":         TestFollow_ContinuesAfterAnEntry,
	} {
		t.Run(name, test)
	}
}
