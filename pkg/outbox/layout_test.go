package outbox_test

import "testing"

// TestTableLayout runs the tests of the layout "ledger" in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Relay_LeavesPausedRows":                                 TestRelay_LeavesPausedRows,
		"Relay_ABacklogThatIsHeldBackHidesNothing":               TestRelay_ABacklogThatIsHeldBackHidesNothing,
		"Relay_PublishesAndMarksCommittedRows":                   TestRelay_PublishesAndMarksCommittedRows,
		"Relay_ACrashBetweenPublishAndMarkPublishesTheSameAgain": TestRelay_ACrashBetweenPublishAndMarkPublishesTheSameAgain,
		"Relay_ARejectedMessageIsRetriedWithANewPair":            TestRelay_ARejectedMessageIsRetriedWithANewPair,
		"Relay_AnUnknownOutcomeIsTriedAgainUnderTheSameID":       TestRelay_AnUnknownOutcomeIsTriedAgainUnderTheSameID,
		"Relay_AnOutageSpendsNoAttempt":                          TestRelay_AnOutageSpendsNoAttempt,
		"Relay_APublisherThatHangsIsAbandoned":                   TestRelay_APublisherThatHangsIsAbandoned,
		"Relay_AMessageThatDoesNotFitTheHandoffIsFoundLater":     TestRelay_AMessageThatDoesNotFitTheHandoffIsFoundLater,
		"Relay_PublishesItsHandoffWhenItStops":                   TestRelay_PublishesItsHandoffWhenItStops,
		"Operator_Retry":                                         TestOperator_Retry,
	} {
		t.Run(name, test)
	}
}
