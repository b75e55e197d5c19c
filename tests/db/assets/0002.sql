BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE algo_config (
	id INTEGER NOT NULL, 
	algorithm_id INTEGER NOT NULL, 
	tile_id INTEGER NOT NULL, 
	stages_id INTEGER NOT NULL, 
	split_k INTEGER NOT NULL, 
	reduction_scheme INTEGER NOT NULL, 
	cta_swizzle INTEGER NOT NULL, 
	custom_option INTEGER NOT NULL, 
	inner_shape INTEGER NOT NULL, 
	cluster_shape INTEGER NOT NULL, 
	CONSTRAINT pk_algo_config PRIMARY KEY (id), 
	CONSTRAINT uq_algo_config_algorithm_id UNIQUE (algorithm_id, tile_id, stages_id, split_k, reduction_scheme, cta_swizzle, custom_option, inner_shape, cluster_shape)
)
 STRICT

;
CREATE TABLE blob (
	sha256 TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	shape TEXT NOT NULL, 
	nbytes INTEGER NOT NULL, 
	present INTEGER NOT NULL, 
	hint TEXT, 
	added_us INTEGER NOT NULL, 
	verified_us INTEGER, 
	CONSTRAINT pk_blob PRIMARY KEY (sha256), 
	CONSTRAINT ck_blob_present CHECK (present IN (0, 1)), 
	CONSTRAINT ck_blob_shape_json CHECK (shape IS NULL OR json_valid(shape))
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "blob" VALUES('75683898c1f4b4f9f65b0eb95a5c46422af0fcf87f0f9ad6e3e4a588d287a548','float32','[1]',4,1,NULL,1796075161868118,NULL);
INSERT INTO "blob" VALUES('ac970585ead3f84646143d98ac9e21df73c9d3a970d0691af6c1b2fef1307cab','float32','[1]',4,1,NULL,1796075161868118,NULL);
CREATE TABLE capture (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	request_pk INTEGER, 
	request_id TEXT, 
	site TEXT NOT NULL, 
	operation TEXT NOT NULL, 
	module_path TEXT, 
	step INTEGER, 
	variant TEXT, 
	process_id INTEGER, 
	rank INTEGER, 
	device TEXT, 
	stall_us INTEGER, 
	captured_us INTEGER NOT NULL, 
	arrived_us INTEGER NOT NULL, 
	receipt TEXT NOT NULL, 
	CONSTRAINT pk_capture PRIMARY KEY (id), 
	CONSTRAINT ck_capture_receipt_json CHECK (receipt IS NULL OR json_valid(receipt)), 
	CONSTRAINT fk_capture_request_pk_request FOREIGN KEY(request_pk) REFERENCES request (id) ON DELETE SET NULL, 
	CONSTRAINT fk_capture_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_capture_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id), 
	CONSTRAINT uq_capture_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "capture" VALUES(1,'01a22e6c-08f7-7bf2-8743-5f7d52161c7e-1',1,1,1,NULL,'{"definition":"double","n":1}','toy',NULL,0,NULL,NULL,NULL,NULL,NULL,2,1796075161868521,'{"model": "toy"}');
CREATE TABLE capture_count (
	run_id INTEGER NOT NULL, 
	process TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	CONSTRAINT pk_capture_count PRIMARY KEY (run_id, process, definition, outcome), 
	CONSTRAINT fk_capture_count_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_count" VALUES(1,'h:1:2','double','seen',3);
CREATE TABLE capture_output (
	capture_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	blob_sha256 TEXT NOT NULL, 
	CONSTRAINT pk_capture_output PRIMARY KEY (capture_id, ordinal), 
	CONSTRAINT fk_capture_output_blob_sha256_blob FOREIGN KEY(blob_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_capture_output_capture_id_capture FOREIGN KEY(capture_id) REFERENCES capture (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_output" VALUES(1,0,'out','ac970585ead3f84646143d98ac9e21df73c9d3a970d0691af6c1b2fef1307cab');
CREATE TABLE capture_worker (
	run_id INTEGER NOT NULL, 
	process TEXT NOT NULL, 
	rank INTEGER, 
	engine TEXT, 
	acknowledged_us INTEGER NOT NULL, 
	drained_us INTEGER, 
	note TEXT, 
	CONSTRAINT pk_capture_worker PRIMARY KEY (run_id, process), 
	CONSTRAINT fk_capture_worker_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_worker" VALUES(1,'h:1:2',0,'toy',1,2,NULL);
CREATE TABLE definition (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	op_type TEXT NOT NULL, 
	family TEXT, 
	reference_sha256 TEXT NOT NULL, 
	body TEXT NOT NULL, 
	origin TEXT, 
	added_us INTEGER NOT NULL, 
	CONSTRAINT pk_definition PRIMARY KEY (id), 
	CONSTRAINT ck_definition_body_json CHECK (body IS NULL OR json_valid(body)), 
	CONSTRAINT uq_definition_name UNIQUE (name, sha256)
)
 STRICT

;
INSERT INTO "definition" VALUES(1,'double','1fd1575039e6714f1c1a7de189dc4ca8e917019a057208d954246bbd7d4c6910','toy',NULL,'b493377a9c1410d6328b7cfc695c0efb81c50ce7e5508aa95a6c0f042c4aaf2a','{"name": "double", "op_type": "toy", "axes": {"N": {"type": "var"}}, "inputs": {"x": {"shape": ["N"], "dtype": "float32"}}, "outputs": {"out": {"shape": ["N"], "dtype": "float32"}}, "reference": "def run(x):\n    return x * 2\n"}','test',1796075161867952);
CREATE TABLE environment (
	id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	os TEXT NOT NULL, 
	python TEXT NOT NULL, 
	torch TEXT, 
	gpu TEXT, 
	capability TEXT, 
	driver TEXT, 
	cuda TEXT, 
	cublaslt TEXT, 
	comfy_kitchen TEXT, 
	facts TEXT NOT NULL, 
	CONSTRAINT pk_environment PRIMARY KEY (id), 
	CONSTRAINT ck_environment_facts_json CHECK (facts IS NULL OR json_valid(facts)), 
	CONSTRAINT uq_environment_sha256 UNIQUE (sha256)
)
 STRICT

;
INSERT INTO "environment" VALUES(1,'ede9cebcbac48027a56391bae2e55c769540c82fb58088542574402a39c4ca34','Linux 6.18.44','3.11.7','2.13.0+cpu',NULL,NULL,NULL,NULL,NULL,'0.2.40','{"comfy_kitchen":"0.2.40","cpu":"AMD EPYC","kclab":"0.1.0","machine":"x86_64","os":"Linux 6.18.44","python":"3.11.7","torch":"2.13.0+cpu"}');
CREATE TABLE error (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	at_us INTEGER NOT NULL, 
	operation TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	message TEXT NOT NULL, 
	traceback TEXT, 
	context TEXT, 
	CONSTRAINT pk_error PRIMARY KEY (id), 
	CONSTRAINT ck_error_context_json CHECK (context IS NULL OR json_valid(context)), 
	CONSTRAINT fk_error_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "error" VALUES(1,1,1796075161869013,'test','kind','message',NULL,'{"a": 1}');
CREATE TABLE fc2_boundary (
	id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	precision TEXT NOT NULL, 
	m INTEGER NOT NULL, 
	m_padded INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	k INTEGER NOT NULL, 
	fast_accumulation INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	block INTEGER, 
	gate_up_sha256 TEXT, 
	block_input_sha256 TEXT, 
	block_output_sha256 TEXT, 
	recipe TEXT, 
	added_us INTEGER NOT NULL, 
	CONSTRAINT pk_fc2_boundary PRIMARY KEY (id), 
	CONSTRAINT ck_fc2_boundary_rows CHECK (m_padded >= m AND m > 0), 
	CONSTRAINT ck_fc2_boundary_recipe_json CHECK (recipe IS NULL OR json_valid(recipe)), 
	CONSTRAINT fk_fc2_boundary_block_input_sha256_blob FOREIGN KEY(block_input_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_fc2_boundary_block_output_sha256_blob FOREIGN KEY(block_output_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_fc2_boundary_gate_up_sha256_blob FOREIGN KEY(gate_up_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_fc2_boundary_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id) ON DELETE CASCADE, 
	CONSTRAINT uq_fc2_boundary_workload_id UNIQUE (workload_id)
)
 STRICT

;
CREATE TABLE fc2_candidate (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	boundary_id INTEGER NOT NULL, 
	config_id INTEGER NOT NULL, 
	origin TEXT NOT NULL, 
	budget INTEGER, 
	rank INTEGER, 
	required_workspace INTEGER, 
	waves REAL, 
	status TEXT NOT NULL, 
	reason TEXT, 
	launch_id INTEGER, 
	output_class TEXT, 
	exact INTEGER, 
	screen_ratio REAL, 
	screen_samples INTEGER NOT NULL, 
	CONSTRAINT pk_fc2_candidate PRIMARY KEY (id), 
	CONSTRAINT ck_fc2_candidate_status CHECK (status IN ('valid', 'folded', 'refused', 'failed')), 
	CONSTRAINT fk_fc2_candidate_boundary_id_fc2_boundary FOREIGN KEY(boundary_id) REFERENCES fc2_boundary (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_candidate_config_id_algo_config FOREIGN KEY(config_id) REFERENCES algo_config (id), 
	CONSTRAINT fk_fc2_candidate_launch_id_fc2_launch FOREIGN KEY(launch_id) REFERENCES fc2_launch (id), 
	CONSTRAINT fk_fc2_candidate_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_fc2_candidate_run_id UNIQUE (run_id, boundary_id, config_id)
)
 STRICT

;
CREATE TABLE fc2_check (
	candidate_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	passed INTEGER NOT NULL, 
	detail TEXT, 
	CONSTRAINT pk_fc2_check PRIMARY KEY (candidate_id, name), 
	CONSTRAINT fk_fc2_check_candidate_id_fc2_candidate FOREIGN KEY(candidate_id) REFERENCES fc2_candidate (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE fc2_enumeration (
	run_id INTEGER NOT NULL, 
	boundary_id INTEGER NOT NULL, 
	budget INTEGER NOT NULL, 
	requested INTEGER NOT NULL, 
	returned INTEGER NOT NULL, 
	error TEXT, 
	CONSTRAINT pk_fc2_enumeration PRIMARY KEY (run_id, boundary_id, budget), 
	CONSTRAINT fk_fc2_enumeration_boundary_id_fc2_boundary FOREIGN KEY(boundary_id) REFERENCES fc2_boundary (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_enumeration_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE fc2_gate (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	boundary_id INTEGER, 
	config_id INTEGER NOT NULL, 
	validity_id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	status TEXT NOT NULL, 
	detail TEXT, 
	at_us INTEGER NOT NULL, 
	CONSTRAINT pk_fc2_gate PRIMARY KEY (id), 
	CONSTRAINT ck_fc2_gate_status CHECK (status IN ('passed', 'failed')), 
	CONSTRAINT ck_fc2_gate_detail_json CHECK (detail IS NULL OR json_valid(detail)), 
	CONSTRAINT fk_fc2_gate_boundary_id_fc2_boundary FOREIGN KEY(boundary_id) REFERENCES fc2_boundary (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_gate_config_id_algo_config FOREIGN KEY(config_id) REFERENCES algo_config (id), 
	CONSTRAINT fk_fc2_gate_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_gate_validity_id_fc2_validity FOREIGN KEY(validity_id) REFERENCES fc2_validity (id)
)
 STRICT

;
CREATE TABLE fc2_launch (
	id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	kernel TEXT NOT NULL, 
	grid TEXT NOT NULL, 
	block TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	shared_bytes INTEGER NOT NULL, 
	kernels INTEGER NOT NULL, 
	stream_k INTEGER NOT NULL, 
	CONSTRAINT pk_fc2_launch PRIMARY KEY (id), 
	CONSTRAINT uq_fc2_launch_sha256 UNIQUE (sha256)
)
 STRICT

;
CREATE TABLE fc2_parity (
	result_id INTEGER NOT NULL, 
	subject TEXT NOT NULL, 
	exact INTEGER NOT NULL, 
	elements INTEGER NOT NULL, 
	different INTEGER NOT NULL, 
	max_abs REAL, 
	mean_abs REAL, 
	actual_sha256 TEXT NOT NULL, 
	expected_sha256 TEXT NOT NULL, 
	reason TEXT, 
	CONSTRAINT pk_fc2_parity PRIMARY KEY (result_id, subject), 
	CONSTRAINT fk_fc2_parity_result_id_fc2_result FOREIGN KEY(result_id) REFERENCES fc2_result (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE fc2_result (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	boundary_id INTEGER NOT NULL, 
	config_id INTEGER NOT NULL, 
	validity_id INTEGER NOT NULL, 
	launch_id INTEGER, 
	measurement_id INTEGER, 
	scope TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	search_seconds REAL, 
	baseline TEXT NOT NULL, 
	required_workspace INTEGER, 
	supplied_workspace INTEGER NOT NULL, 
	a_ms REAL, 
	b0_ms REAL, 
	b_ms REAL, 
	ratio REAL, 
	ratio_low REAL, 
	ratio_high REAL, 
	baseline_ratio REAL, 
	wrapper_ratio REAL, 
	floor REAL, 
	drift REAL, 
	pairs INTEGER NOT NULL, 
	verdict TEXT NOT NULL, 
	exact INTEGER NOT NULL, 
	checked INTEGER, 
	different INTEGER, 
	output_sha256 TEXT, 
	is_control INTEGER NOT NULL, 
	imported INTEGER NOT NULL, 
	measured_us INTEGER NOT NULL, 
	CONSTRAINT pk_fc2_result PRIMARY KEY (id), 
	CONSTRAINT fk_fc2_result_boundary_id_fc2_boundary FOREIGN KEY(boundary_id) REFERENCES fc2_boundary (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_result_config_id_algo_config FOREIGN KEY(config_id) REFERENCES algo_config (id), 
	CONSTRAINT fk_fc2_result_launch_id_fc2_launch FOREIGN KEY(launch_id) REFERENCES fc2_launch (id), 
	CONSTRAINT fk_fc2_result_measurement_id_measurement FOREIGN KEY(measurement_id) REFERENCES measurement (id) ON DELETE SET NULL, 
	CONSTRAINT fk_fc2_result_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT fk_fc2_result_validity_id_fc2_validity FOREIGN KEY(validity_id) REFERENCES fc2_validity (id)
)
 STRICT

;
CREATE TABLE fc2_validity (
	id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	backend TEXT NOT NULL, 
	gpu TEXT, 
	capability TEXT, 
	driver TEXT, 
	cublaslt TEXT, 
	torch TEXT, 
	facts TEXT NOT NULL, 
	CONSTRAINT pk_fc2_validity PRIMARY KEY (id), 
	CONSTRAINT ck_fc2_validity_facts_json CHECK (facts IS NULL OR json_valid(facts)), 
	CONSTRAINT uq_fc2_validity_sha256 UNIQUE (sha256)
)
 STRICT

;
CREATE TABLE foreign_record (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	definition TEXT, 
	workload_uuid TEXT, 
	path TEXT NOT NULL, 
	body TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	CONSTRAINT pk_foreign_record PRIMARY KEY (id), 
	CONSTRAINT ck_foreign_record_body_json CHECK (body IS NULL OR json_valid(body)), 
	CONSTRAINT fk_foreign_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_foreign_record_kind UNIQUE (kind, sha256)
)
 STRICT

;
INSERT INTO "foreign_record" VALUES(1,'solution','ab',NULL,NULL,'p','{}',1);
CREATE TABLE measurement (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	baseline_ms REAL, 
	candidate_ms REAL, 
	ratio REAL, 
	ratio_low REAL, 
	ratio_high REAL, 
	pairs INTEGER NOT NULL, 
	verdict TEXT, 
	detail TEXT, 
	CONSTRAINT pk_measurement PRIMARY KEY (id), 
	CONSTRAINT ck_measurement_detail_json CHECK (detail IS NULL OR json_valid(detail)), 
	CONSTRAINT fk_measurement_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "measurement" VALUES(1,1,'gemm',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL);
CREATE TABLE oracle_output (
	replay_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	verdict TEXT NOT NULL, 
	engine_max_ulp REAL, 
	engine_rms_ulp REAL, 
	engine_max_abs REAL, 
	reference_max_ulp REAL, 
	reference_rms_ulp REAL, 
	reference_max_abs REAL, 
	bound_ulp REAL, 
	metrics TEXT, 
	CONSTRAINT pk_oracle_output PRIMARY KEY (replay_id, ordinal), 
	CONSTRAINT ck_oracle_output_metrics_json CHECK (metrics IS NULL OR json_valid(metrics)), 
	CONSTRAINT fk_oracle_output_replay_id_replay FOREIGN KEY(replay_id) REFERENCES replay (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "oracle_output" VALUES(1,0,'neither',0.5,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE replay (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	subject TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	capture_id INTEGER, 
	workload_id INTEGER, 
	definition_id INTEGER, 
	origin TEXT, 
	status TEXT NOT NULL, 
	reason TEXT, 
	warning TEXT, 
	imported INTEGER NOT NULL, 
	device TEXT, 
	seconds REAL, 
	started_us INTEGER NOT NULL, 
	error_id INTEGER, 
	CONSTRAINT pk_replay PRIMARY KEY (id), 
	CONSTRAINT ck_replay_status CHECK (status IN ('passed', 'failed', 'error', 'skipped')), 
	CONSTRAINT fk_replay_capture_id_capture FOREIGN KEY(capture_id) REFERENCES capture (id) ON DELETE CASCADE, 
	CONSTRAINT fk_replay_definition_id_definition FOREIGN KEY(definition_id) REFERENCES definition (id), 
	CONSTRAINT fk_replay_error_id_error FOREIGN KEY(error_id) REFERENCES error (id) ON DELETE SET NULL, 
	CONSTRAINT fk_replay_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT fk_replay_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "replay" VALUES(1,1,'workload','double',1,1,1,NULL,'passed',NULL,NULL,0,NULL,NULL,3,NULL);
CREATE TABLE replay_output (
	replay_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	passed INTEGER NOT NULL, 
	policy TEXT NOT NULL, 
	rtol REAL, 
	atol REAL, 
	elements INTEGER NOT NULL, 
	mismatched INTEGER NOT NULL, 
	max_abs REAL, 
	rms REAL, 
	relative_rms REAL, 
	worst_index TEXT, 
	worst_engine TEXT, 
	worst_reference TEXT, 
	reason TEXT, 
	metrics TEXT, 
	CONSTRAINT pk_replay_output PRIMARY KEY (replay_id, ordinal), 
	CONSTRAINT ck_replay_output_metrics_json CHECK (metrics IS NULL OR json_valid(metrics)), 
	CONSTRAINT ck_replay_output_worst_index_json CHECK (worst_index IS NULL OR json_valid(worst_index)), 
	CONSTRAINT fk_replay_output_replay_id_replay FOREIGN KEY(replay_id) REFERENCES replay (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "replay_output" VALUES(1,0,'out','float32',1,'allclose',NULL,NULL,3,0,NULL,0.0,NULL,'[0]',NULL,NULL,NULL,NULL);
CREATE TABLE request (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	request_id TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	response TEXT, 
	status_code INTEGER, 
	started_us INTEGER NOT NULL, 
	finished_us INTEGER, 
	CONSTRAINT pk_request PRIMARY KEY (id), 
	CONSTRAINT ck_request_payload_json CHECK (payload IS NULL OR json_valid(payload)), 
	CONSTRAINT ck_request_response_json CHECK (response IS NULL OR json_valid(response)), 
	CONSTRAINT fk_request_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_request_run_id UNIQUE (run_id, request_id)
)
 STRICT

;
INSERT INTO "request" VALUES(1,1,'r1','{"prompt": "a"}',NULL,NULL,1,NULL);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	command TEXT NOT NULL, 
	mode TEXT, 
	status TEXT NOT NULL, 
	started_us INTEGER NOT NULL, 
	finished_us INTEGER, 
	heartbeat_us INTEGER NOT NULL, 
	pid INTEGER NOT NULL, 
	process_started_us INTEGER, 
	boot_id TEXT, 
	environment_id INTEGER NOT NULL, 
	parent_id INTEGER, 
	exit_code INTEGER, 
	git_commit TEXT, 
	git_dirty INTEGER, 
	host TEXT, 
	gpu_uuid TEXT, 
	note TEXT, 
	argv TEXT NOT NULL, 
	params TEXT NOT NULL, 
	volatile TEXT, 
	summary TEXT, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT ck_run_status CHECK (status IN ('running', 'passed', 'failed', 'empty', 'error', 'interrupted', 'stale')), 
	CONSTRAINT ck_run_argv_json CHECK (argv IS NULL OR json_valid(argv)), 
	CONSTRAINT ck_run_params_json CHECK (params IS NULL OR json_valid(params)), 
	CONSTRAINT ck_run_volatile_json CHECK (volatile IS NULL OR json_valid(volatile)), 
	CONSTRAINT fk_run_environment_id_environment FOREIGN KEY(environment_id) REFERENCES environment (id), 
	CONSTRAINT fk_run_parent_id_run FOREIGN KEY(parent_id) REFERENCES run (id), 
	CONSTRAINT uq_run_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "run" VALUES(1,'01a22e6c-08f7-7bf2-8743-5f7d52161c7e','capture',NULL,'passed',1796075161847788,1796075161869604,1796075161869604,8956,12437460000,'a6c3323a-75ea-4bca-8a68-bd3950d146a7 pid:[4026531836]',1,NULL,0,'b0ac8ff8cdf63dac3b23f11d1cce840b052f16f4',1,'vm',NULL,NULL,'["dump_asset.py", "tests/db/assets/0002.sql"]','{"steps": [0]}',NULL,NULL);
CREATE TABLE run_tag (
	run_id INTEGER NOT NULL, 
	tag TEXT NOT NULL, 
	CONSTRAINT pk_run_tag PRIMARY KEY (run_id, tag), 
	CONSTRAINT fk_run_tag_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "run_tag" VALUES(1,'good');
CREATE TABLE timing_sample (
	measurement_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	arm TEXT NOT NULL, 
	ms REAL NOT NULL, 
	CONSTRAINT pk_timing_sample PRIMARY KEY (measurement_id, round, position), 
	CONSTRAINT fk_timing_sample_measurement_id_measurement FOREIGN KEY(measurement_id) REFERENCES measurement (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "timing_sample" VALUES(1,0,0,'A',1.5);
INSERT INTO "timing_sample" VALUES(1,0,1,'B',1.25);
CREATE TABLE workload (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	definition_id INTEGER NOT NULL, 
	axes TEXT NOT NULL, 
	added_us INTEGER NOT NULL, 
	extra TEXT, 
	CONSTRAINT pk_workload PRIMARY KEY (id), 
	CONSTRAINT ck_workload_axes_json CHECK (axes IS NULL OR json_valid(axes)), 
	CONSTRAINT ck_workload_extra_json CHECK (extra IS NULL OR json_valid(extra)), 
	CONSTRAINT fk_workload_definition_id_definition FOREIGN KEY(definition_id) REFERENCES definition (id), 
	CONSTRAINT uq_workload_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "workload" VALUES(1,'workload-1',1,'{"N": 1}',1796075161868266,NULL);
CREATE TABLE workload_input (
	workload_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	blob_sha256 TEXT, 
	scalar TEXT, 
	random TEXT, 
	CONSTRAINT pk_workload_input PRIMARY KEY (workload_id, name), 
	CONSTRAINT ck_workload_input_one_source CHECK ((blob_sha256 IS NOT NULL) + (scalar IS NOT NULL) + (random IS NOT NULL) = 1), 
	CONSTRAINT fk_workload_input_blob_sha256_blob FOREIGN KEY(blob_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_workload_input_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "workload_input" VALUES(1,'s',NULL,'2.0',NULL);
INSERT INTO "workload_input" VALUES(1,'x','75683898c1f4b4f9f65b0eb95a5c46422af0fcf87f0f9ad6e3e4a588d287a548',NULL,NULL);
CREATE INDEX ix_run_command_started ON run (command, started_us);
CREATE INDEX ix_run_environment_id ON run (environment_id);
CREATE INDEX ix_run_live ON run (heartbeat_us) WHERE status = 'running';
CREATE INDEX ix_run_parent_id ON run (parent_id);
CREATE INDEX ix_run_started ON run (started_us);
CREATE INDEX ix_workload_definition ON workload (definition_id, id);
CREATE INDEX ix_error_run_id ON error (run_id);
CREATE INDEX ix_foreign_record_run_id ON foreign_record (run_id);
CREATE INDEX ix_measurement_run_name ON measurement (run_id, name);
CREATE INDEX ix_run_tag_tag ON run_tag (tag, run_id);
CREATE INDEX ix_workload_input_blob_sha256 ON workload_input (blob_sha256);
CREATE INDEX ix_capture_arrived ON capture (arrived_us);
CREATE INDEX ix_capture_captured ON capture (captured_us);
CREATE INDEX ix_capture_run_site ON capture (run_id, site);
CREATE INDEX ix_capture_workload ON capture (workload_id, captured_us);
CREATE INDEX ix_capture_output_blob_sha256 ON capture_output (blob_sha256);
CREATE INDEX ix_replay_capture ON replay (capture_id, started_us, status);
CREATE INDEX ix_replay_definition ON replay (definition_id, started_us);
CREATE INDEX ix_replay_run ON replay (run_id, status);
CREATE INDEX ix_replay_started ON replay (started_us);
CREATE INDEX ix_replay_subject ON replay (subject, started_us);
CREATE INDEX ix_replay_workload_id ON replay (workload_id);
CREATE INDEX ix_fc2_boundary_block_input_sha256 ON fc2_boundary (block_input_sha256);
CREATE INDEX ix_fc2_boundary_block_output_sha256 ON fc2_boundary (block_output_sha256);
CREATE INDEX ix_fc2_boundary_gate_up_sha256 ON fc2_boundary (gate_up_sha256);
CREATE INDEX ix_fc2_boundary_shape ON fc2_boundary (precision, n, k, m);
CREATE INDEX ix_fc2_candidate_boundary_id ON fc2_candidate (boundary_id);
CREATE INDEX ix_fc2_candidate_config_id ON fc2_candidate (config_id);
CREATE INDEX ix_fc2_candidate_launch_id ON fc2_candidate (launch_id);
CREATE INDEX ix_fc2_gate_boundary_id ON fc2_gate (boundary_id);
CREATE INDEX ix_fc2_gate_config ON fc2_gate (config_id, boundary_id, at_us);
CREATE INDEX ix_fc2_gate_run_id ON fc2_gate (run_id);
CREATE INDEX ix_fc2_gate_validity_id ON fc2_gate (validity_id);
CREATE INDEX ix_fc2_result_best ON fc2_result (scope, exact, boundary_id, validity_id, config_id, measured_us, ratio, verdict, is_control, required_workspace, checked);
CREATE INDEX ix_fc2_result_boundary ON fc2_result (boundary_id);
CREATE INDEX ix_fc2_result_config ON fc2_result (config_id, measured_us);
CREATE INDEX ix_fc2_result_launch_id ON fc2_result (launch_id);
CREATE INDEX ix_fc2_result_measurement_id ON fc2_result (measurement_id);
CREATE INDEX ix_fc2_result_run_id ON fc2_result (run_id);
CREATE INDEX ix_fc2_result_validity_id ON fc2_result (validity_id);
COMMIT;
